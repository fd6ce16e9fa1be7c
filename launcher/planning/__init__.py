"""From the command line to frozen runs: what an experiment asks for, checked as a whole before anything is written."""
