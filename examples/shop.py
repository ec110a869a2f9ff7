"""Handle orders: retry those that fail, and keep those that keep failing in ``orders:dead``.

millstream serve --port 6400 --dir data
millstream run shop:app --url redis://127.0.0.1:6400/0 --workers 2
millstream stream add orders item=tea price=3 --url redis://127.0.0.1:6400/0
millstream dead ls orders --url redis://127.0.0.1:6400/0
"""

from millstream import App, Nack, Retry, StreamSub

app = App()


@app.subscriber(StreamSub("orders", group="billing", min_idle_time="10s"), retry=Retry(max_deliveries=3, base="1s"))
async def bill(item: str, price: float) -> None:
    if price < 0:
        raise ValueError("the price is negative")  # delivered again, then a dead letter with this traceback
    if price == 0:
        raise Nack(delay="1h")  # tried again in an hour, even after a restart
    print("billed", item, "for", price, flush=True)
