"""verl's losses and optimizer in one process, with one model and no servers."""

from trainer_ext.backends.in_process.export import export
from trainer_ext.backends.in_process.trainer import InProcess

__all__ = ["create", "export"]

create = InProcess
