"""What stands in for CUDA on a laptop: gloo for NCCL, vLLM's CPU build, sockets kept on loopback."""
