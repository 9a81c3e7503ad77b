"""Support tickets of an online bookkeeping service, read by an LLM every day."""
