"""python -m launcher.worker RUN_FOLDER: one attempt at a frozen run."""

from launcher.worker.worker import main

main()
