"""Linear maps head by head: into the latent space and out of it."""
