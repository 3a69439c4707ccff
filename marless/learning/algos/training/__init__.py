"""What the learners of all families share, with torch: the function graph, stacks, samples, measurements."""
