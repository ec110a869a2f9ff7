"""The look of the page, light and dark by the reader's choice."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1b2330; --faint: #64707f; --grid: #e3e7ec;
  --c1: #2563c9; --c2: #d9730d; --c3: #1a8f6b; --c4: #8a5cc7; --heat: #c2410c;
  --good: #15803d; --bad: #c8102e; --good-back: #dcf5e4; --bad-back: #fde2e4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #10141a; --card: #181e27; --ink: #e6eaf0; --faint: #93a0b0; --grid: #2a323d;
    --c1: #6ea8ff; --c2: #ffa657; --c3: #4fd1a5; --c4: #bf9bf2; --heat: #ff8a4c;
    --good: #5fd38d; --bad: #ff7b86; --good-back: #143324; --bad-back: #45191f;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 40px 20px 60px; }
h1 { font-size: clamp(28px, 5vw, 44px); line-height: 1.1; margin: 10px 0 12px; letter-spacing: -0.02em; }
h2 { font-size: 20px; margin: 0 0 2px; }
header p { max-width: 44em; margin: 0; }
section p { color: var(--faint); margin: 0 0 16px; }
section, .figures > div { background: var(--card); border: 1px solid var(--grid); border-radius: 12px; }
section { padding: 22px 24px; margin-top: 18px; }
.badge { display: inline-block; padding: 3px 12px; border-radius: 99px; font-weight: 600; font-size: 14px; }
.badge.good { color: var(--good); background: var(--good-back); }
.badge.bad { color: var(--bad); background: var(--bad-back); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; margin-top: 26px; }
.figures > div { padding: 14px 16px; display: flex; flex-direction: column; }
.figures b { font-size: 26px; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
.figures span { font-weight: 600; }
.figures small { color: var(--faint); line-height: 1.35; }
svg { display: block; width: 100%; height: auto; overflow: visible; font: 13px system-ui, sans-serif; }
svg text { fill: var(--ink); }
svg .tick { fill: var(--faint); font-size: 12px; }
svg .name { font-weight: 600; }
svg .note { font-size: 12px; font-weight: 600; }
svg .value { fill: var(--faint); }
svg .grid { stroke: var(--grid); }
svg .mark { stroke-dasharray: 4 3; }
svg .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
svg .area { fill-opacity: 0.35; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--faint); font-weight: 600; }
th, td { padding: 6px 14px 6px 0; vertical-align: top; }
tr.first td { border-top: 1px solid var(--grid); }
td:first-child { font-weight: 600; white-space: nowrap; }
td:nth-child(3), td:nth-child(4) { font-variant-numeric: tabular-nums; }
td.ok { color: var(--good); font-weight: 600; }
td.no { color: var(--bad); font-weight: 700; }
code, pre { font: 13px/1.6 ui-monospace, "SF Mono", Menlo, monospace; }
pre { background: var(--card); border: 1px solid var(--grid); border-radius: 8px; padding: 12px 16px; }
pre, section { overflow-x: auto; }
footer { color: var(--faint); margin-top: 28px; font-size: 14px; }
@media (max-width: 640px) { main { padding: 24px 12px; } section { padding: 16px 14px; } svg { min-width: 560px; } }
"""
