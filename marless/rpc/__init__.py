"""Communication between processes: gRPC servers and clients, bulk transfers, security, and pools of workers."""
