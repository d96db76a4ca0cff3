"""What it costs to keep responses and to continue from them."""
