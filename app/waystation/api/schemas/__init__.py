"""Domain objects as clients read them."""
