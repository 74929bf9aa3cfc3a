"""Where people are counted: the public frame of leaves and the spine above them."""
