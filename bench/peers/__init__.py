"""Other systems on the same task, installed into their own virtual environments and run by their own interpreters."""
