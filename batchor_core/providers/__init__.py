"""Adapters: one package per provider behind one protocol. SDKs are imported when first used."""
