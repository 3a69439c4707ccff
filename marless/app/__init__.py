"""What people touch: the command line, and the client for Python."""
