"""A model's trainable tensors as one vector, and the changes that are made to them."""
