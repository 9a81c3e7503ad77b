"""The output model of the answers project, importable by every process that needs it."""

from typing import Literal

from pydantic import BaseModel, Field


class Customer(BaseModel):
    """Who wrote the ticket."""

    name: str
    tags: list[str]


class Triage(BaseModel):
    """What a ticket is about."""

    category: Literal["billing", "delivery", "other"] = Field(description="What it is about.")
    urgency: int = Field(ge=1, le=5)
    customer: Customer
    refund: float | None
