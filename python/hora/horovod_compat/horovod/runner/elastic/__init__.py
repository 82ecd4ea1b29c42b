"""Where Horovod keeps the side of the launcher that follows a job's hosts."""
