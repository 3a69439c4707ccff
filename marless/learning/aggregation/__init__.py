"""How the gradients of asynchronous learners become a version: when they are aggregated, with what weights, and how."""
