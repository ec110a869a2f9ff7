"""The paths of the pages."""

from millstream.console.web.changing.change import change_page, make_change
from millstream.console.web.changing.job import job_page, stop_job
from millstream.console.web.pages.dead import dead_page
from millstream.console.web.pages.entry import entry_page
from millstream.console.web.pages.group import group_page
from millstream.console.web.pages.health import health_page
from millstream.console.web.pages.overview import overview_page
from millstream.console.web.pages.search import search_page
from millstream.console.web.pages.spark.archive import archive_page
from millstream.console.web.pages.spark.queries import queries_page
from millstream.console.web.pages.spark.query import query_page
from millstream.console.web.pages.stream import stream_page
from millstream.console.web.pages.workers import workers_page

PAGES = {
    "/": overview_page,
    "/stream": stream_page,
    "/entry": entry_page,
    "/group": group_page,
    "/dead": dead_page,
    "/workers": workers_page,
    "/spark": queries_page,
    "/query": query_page,
    "/archive": archive_page,
    "/server": health_page,
    "/change": change_page,
    "/job": job_page,
    "/search": search_page,
}
"""Path -> what makes the page."""

POSTED = {"/change": make_change, "/job": stop_job}
"""Path -> what does what a form asks for."""
