"""What clients and operators see: the gRPC servicer, streams, files, readiness and metrics."""
