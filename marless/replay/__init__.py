"""What recorded rounds would have taken, decided and cost elsewhere: on another cluster, or under other policies."""
