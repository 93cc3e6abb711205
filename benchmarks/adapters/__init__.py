"""Evidence for docs/adapters.md: what adapters keep of a fine-tune; which layers to train."""
