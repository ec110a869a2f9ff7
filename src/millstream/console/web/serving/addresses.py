"""Which path shows which page."""

from millstream.console.web.pages.change import change_page
from millstream.console.web.pages.dead import dead_page
from millstream.console.web.pages.entry import entry_page
from millstream.console.web.pages.group import group_page
from millstream.console.web.pages.health import health_page
from millstream.console.web.pages.overview import overview_page
from millstream.console.web.pages.search import search_page
from millstream.console.web.pages.stream import stream_page
from millstream.console.web.pages.workers import workers_page

PAGES = {
    "/": overview_page,
    "/stream": stream_page,
    "/entry": entry_page,
    "/group": group_page,
    "/dead": dead_page,
    "/workers": workers_page,
    "/server": health_page,
    "/change": change_page,
    "/search": search_page,
}
"""Path -> what makes the page."""
