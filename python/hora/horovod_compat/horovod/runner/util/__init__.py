"""Where Horovod keeps parts of its launcher."""
