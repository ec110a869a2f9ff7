"""Publish an entry for each request from Flask; a worker handles it in another process.

flask --app flask_publish:web run
curl -X POST localhost:5000/orders -H 'content-type: application/json' -d '{"item": "tea"}'
"""

from flask import Flask, request

from millstream import App

broker = App()  # its server: MILLSTREAM_URL
web = Flask(__name__)


@web.post("/orders")
def order() -> tuple[dict[str, str], int]:
    """Return the entry's id. Without a reply, the entry is sent again for five seconds, and added once."""
    return {"entry": broker.publish_sync("orders", request.get_json(), retry=5)}, 202
