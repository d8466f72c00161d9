"""What runs on a GPU: launches of kernels, memory that threads share, what threads do together."""
