"""Pure decisions: chunking, tokens, prices, prompts, schemas and the shape of results."""
