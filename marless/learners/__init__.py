"""The torch side of algorithms: what a learner worker runs. One package a family; what they share lies beside them."""
