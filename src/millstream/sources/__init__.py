"""Where changes come from: what a refresh reads of its inputs."""
