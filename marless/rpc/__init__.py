"""How processes speak: gRPC servers, peers, bulk transfers, workers."""
