"""Where changes come from: how a refresh reads its inputs."""
