"""What happened: the coordinator, the log, and everything that is read out of it."""
