"use strict";
// Everything here is comfort: without it the pages are whole. What the server sent is put in place piece by piece, so
// that what is selected, open, focused or scrolled stays so. Text never becomes HTML but in parse().

const root = document.documentElement;
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
} catch { /* storage is switched off: the system's choice it is */ }

const policy = window.trustedTypes
  ? trustedTypes.createPolicy("millstream", { createHTML: (text) => text })
  : { createHTML: (text) => text };

// The one place: pages of this console's own server, in which it escaped everything. A parsed document runs no script.
function parse(text) {
  return new DOMParser().parseFromString(policy.createHTML(`<!doctype html><main>${text}</main>`), "text/html").body.firstChild;
}

function keyOf(node) {
  return node.nodeType === 1 ? node.dataset.key || node.id || "" : "";
}

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

function morph(old, fresh) {
  if (old.nodeType !== 1) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !kept(old, name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !kept(old, name)) old.setAttribute(name, value);
  }
  if (old.nodeName === "INPUT" || old.nodeName === "TEXTAREA" || "inline" in old.dataset) return;
  morphChildren(old, fresh);
}

// What the reader, and not the server, has set: an open list, the row they are at, a button that scripts bring out.
function kept(node, name) {
  return (name === "open" && node.nodeName === "DETAILS") || (name === "class" && node.classList.contains("at")) ||
    (name === "hidden" && node.nodeName === "BUTTON");
}

// The elements of a part that alone have their key; null for a key of several
function byKey(part) {
  const found = new Map();
  for (const each of part.querySelectorAll("[data-key], [id]")) found.set(keyOf(each), found.has(keyOf(each)) ? null : each);
  return found;
}

const unfolded = new Map(); // if the reader opened or closed a list, by its key, also of those that are away
let shown = new Map(); // what the page has and what the new one wants, by key
let wanted = new Map();

function renew(main, html) {
  const fresh = parse(html);
  [shown, wanted] = [byKey(main), byKey(fresh)];
  morphChildren(main, fresh);
}

// An element that was moved there from another table or list, with what is typed and open in it
function stray(old, want, key) {
  const found = wanted.get(key) === want ? shown.get(key) : null;
  return found && !found.contains(old) ? found : null;
}

// A move that takes no focus and no scrolling, where the browser can do that
function place(parent, node, before) {
  parent[parent.moveBefore && parent.isConnected && node.isConnected ? "moveBefore" : "insertBefore"](node, before);
}

function morphChildren(old, fresh) {
  const named = new Map();
  for (const child of old.childNodes) {
    const key = keyOf(child);
    if (key && !named.has(key)) named.set(key, child);
  }
  const keys = new Set([...fresh.childNodes].map(keyOf));
  let at = old.firstChild;
  for (const want of [...fresh.childNodes]) {
    const key = keyOf(want);
    let found = key ? named.get(key) || stray(old, want, key) : at && !keyOf(at) ? at : null;
    named.delete(key);
    const isNew = !found || !alike(found, want);
    if (isNew) {
      found = document.importNode(want, false);
      if (found.nodeName === "DETAILS" && unfolded.has(key)) found.open = unfolded.get(key);
    } else if (found.parentNode === old) { // what goes away goes first, so that nothing has to move for it
      while (at !== found && !(keyOf(at) && keys.has(keyOf(at)))) {
        at = at.nextSibling;
        at.previousSibling.remove();
      }
    }
    if (found !== at) place(old, found, at);
    if (!isNew) morph(found, want);
    else if (found.nodeType === 1) morphChildren(found, want);
    at = found.nextSibling;
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

addEventListener("DOMContentLoaded", () => {
  const main = document.getElementById("main");
  const state = document.getElementById("state");
  const notice = document.getElementById("notice");
  const pause = document.getElementById("pause");
  const help = document.getElementById("help");
  const isLive = main.hasAttribute("data-live");
  let source = null;
  let paused = false;
  let lost = false;
  let full = ""; // why the console keeps this page not live
  let every = 1;
  let at = Number(main.dataset.at);
  let trouble = notice.hidden ? "" : notice.textContent;
  let skew = 0; // the server's clock less ours
  let held = null; // the newest page, while a pointer is over a row or somebody writes
  let pressed = false; // a click has begun, which an element that goes away would lose

  function age() {
    return Math.max(0, Math.round((Date.now() + skew - at) / 1000));
  }

  function long(seconds) {
    if (seconds < 60) return `${seconds} s`;
    return seconds < 3600 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
  }

  function say() {
    if (!isLive) return;
    const old = age();
    const kind = paused ? "paused" : lost || trouble ? "lost" : "live";
    const pace = every > 1.5 ? `, every ${Math.round(every)} s` : "";
    const text = paused ? `paused, ${long(old)} old` : held && kind === "live" ? "live, held still" : kind === "lost" ? `${long(old)} old` : `live${pace}`;
    if (state.dataset.state !== kind) state.dataset.state = kind;
    if (state.textContent !== text) state.textContent = text;
    const words = full && !paused ? full : lost && !paused
      ? `The console does not answer since ${long(old)}; it is asked again and again. What you see is as old.`
      : trouble;
    if (notice.textContent !== words) notice.textContent = words;
    notice.hidden = !words;
  }

  function take(event) {
    const facts = JSON.parse(event.data);
    lost = false;
    full = "";
    trouble = facts.trouble;
    every = facts.every;
    if (facts.at !== at || !skew) skew = Math.min(facts.at - Date.now(), skew || Infinity);
    at = facts.at;
    if (facts.html !== undefined) held = facts;
    settle();
    say();
  }

  // A row that somebody points at must not move from under the pointer, nor a letter that somebody corrects
  function still() {
    return main.querySelector("tbody tr:hover, .findings li:hover, .hits li:hover, .deed:hover") !== null ||
      [...main.querySelectorAll("textarea")].some((each) => each.value !== each.defaultValue);
  }

  function settle() {
    if (held === null || pressed || still()) return;
    renew(main, held.html);
    document.title = `${held.title} · Millstream`;
    held = null;
    bringOut();
  }

  // The preview of a correction, beside it, while it is written
  let asked = 0;
  async function preview(form) {
    const place = form.parentElement.querySelector("[data-inline]");
    const mine = ++asked;
    const body = new URLSearchParams(new FormData(form));
    const answer = await fetch(form.action, { method: "POST", body }).catch(() => null);
    if (answer === null || mine !== asked) return;
    const page = new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
    const parts = page.querySelectorAll(".finding.problem, section:has(.difference), form.confirm");
    place.replaceChildren(...[...parts].map((part) => document.importNode(part, true)));
  }

  let writing = 0;
  main.addEventListener("input", (event) => {
    const form = event.target.closest("form[data-preview]");
    if (form === null) return;
    clearTimeout(writing);
    writing = setTimeout(() => preview(form), 400);
  });
  main.addEventListener("pointerout", () => setTimeout(settle, 200));
  main.addEventListener("click", ({ target }) => {
    const list = target.closest("summary")?.parentElement;
    if (list) unfolded.set(keyOf(list), !list.open); // it opens or closes after this
  });
  addEventListener("pointerdown", (event) => { pressed = event.button === 0; });
  for (const end of ["pointerup", "pointercancel", "blur", "pointermove"]) { // a move without a button: its end was lost
    addEventListener(end, (event) => {
      if (!pressed || event.buttons) return;
      pressed = false;
      setTimeout(settle, 200);
    });
  }

  function open() {
    if (source || paused || document.hidden || !isLive) return;
    source = new EventSource(location.pathname + location.search);
    source.addEventListener("page", take);
    source.addEventListener("same", take);
    source.addEventListener("full", (event) => { full = JSON.parse(event.data).trouble; });
    source.onerror = () => {
      lost = true;
      if (source.readyState === EventSource.CLOSED) { // an answer that is no stream: ask again ourselves
        close();
        setTimeout(open, 2000);
      }
      say();
    };
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  function setPaused(wanted) {
    paused = wanted;
    pause.textContent = paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) close();
    else open();
    say();
  }

  function setTheme() {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it lasts for this page */ }
  }

  function bringOut() {
    for (const button of document.querySelectorAll("button.copy[hidden]")) button.hidden = false;
  }

  // The rows that lead somewhere, and the one that the keys are at
  function rows() {
    return [...main.querySelectorAll("[data-href]")].filter((row) => row.offsetParent !== null);
  }

  function move(step) {
    const all = rows();
    const from = all.findIndex((row) => row.classList.contains("at"));
    const to = Math.min(Math.max(from + step, 0), all.length - 1);
    if (!all.length) return;
    if (from >= 0) all[from].classList.remove("at");
    all[to].classList.add("at");
    all[to].scrollIntoView({ block: "nearest" });
    const link = [...all[to].querySelectorAll("a")].find((each) => each.getAttribute("href") === all[to].dataset.href);
    if (link) link.focus({ preventScroll: true });
  }

  let going = false;

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName);
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (help.open) return;
    if (going) {
      going = false;
      const link = [...document.querySelectorAll(".bar nav a")].find((each) => each.dataset.go === event.key);
      if (link) link.click();
      return;
    }
    const actions = {
      "/": () => document.querySelector(".find input").select(),
      "?": () => help.showModal(),
      j: () => move(1),
      k: () => move(-1),
      p: () => isLive && setPaused(!paused),
      t: setTheme,
      u: () => [...document.querySelectorAll("[data-up]")].slice(-1).forEach((link) => link.click()),
      g: () => { going = true; setTimeout(() => { going = false; }, 1500); },
    };
    if (Object.hasOwn(actions, event.key)) {
      event.preventDefault();
      actions[event.key]();
    }
  }

  pause.hidden = !isLive;
  pause.onclick = () => setPaused(!paused);
  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.onclick = setTheme;
  const keys = document.getElementById("keys");
  keys.hidden = false;
  keys.onclick = () => help.showModal();
  addEventListener("keydown", key);
  addEventListener("click", (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    navigator.clipboard.writeText(button.dataset.copy).then(() => {
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  bringOut();
  open();
  say();
  setInterval(say, 1000);
});
