"""What a batch asset is: its declaration, its checks, and what the UI shows of it."""
