"""verl's losses and optimizer in one process, with one model and no servers."""

from trainer_ext.backends.in_process.trainer import InProcess

create = InProcess
