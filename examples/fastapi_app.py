"""Publish an entry for each request, and handle entries in the same process.

uvicorn fastapi_app:web
curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"item": "tea"}'
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from millstream import App, StreamSub

broker = App()  # its server: MILLSTREAM_URL
billed: list[str] = []


@broker.subscriber(StreamSub("orders", group="billing"))
async def bill(item: str) -> None:
    billed.append(item)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with broker.running():
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def order(order: dict[str, str]) -> dict[str, str]:
    return {"entry": await broker.publish("orders", order, retry=5)}


@web.get("/billed")
async def finished() -> list[str]:
    return billed
