// A run as one self-contained HTML file: verdict, thresholds, pictures of answers and latencies, figures.

const STYLE = `
:root { color-scheme: light dark; --text: #1c2430; --soft: #5c6675; --back: #fff; --line: #d5dae1; --bar: #2b7fb8;
  --tail: #d2572b; --good: #1f7a45; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ee; --soft: #9aa4b2; --back: #14181e; --line: #343c47;
  --bar: #4da3dd; --tail: #ee7b4f; --good: #56c58a; --bad: #f2837b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } .soft { color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; } svg { width: 100%; min-width: 40rem; height: auto; }
svg text { fill: var(--text); font: 13px system-ui, sans-serif; } svg .soft { fill: var(--soft); }
.bar { fill: var(--bar); } .tail { fill: var(--tail); } .grid { stroke: var(--line); }
.span { stroke: var(--soft); stroke-width: 2; }
table { border-collapse: collapse; } td, th { padding: .25rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); } td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; }
`;

const WIDTH = 960;
const LABEL_WIDTH = 230;
const PLOT_WIDTH = 600;
const ROW_HEIGHT = 30;
// Shorter times are drawn as a tenth of a millisecond.
const SHORTEST_MS = 0.1;

// The HTML page of a run, from the view of lib/summary.js.
export function summaryPage(view) {
  const verdict = view.passed ? 'passed' : 'failed';
  const held = view.thresholds.filter(({ ok }) => ok).length;
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>${escaped(`${view.scenario}: ${verdict}`)}</title>
<style>${STYLE}</style></head><body>
<h1>${escaped(view.scenario)}: <span class="${view.passed ? 'good' : 'bad'}">${verdict}</span></h1>
<p>${held} of ${view.thresholds.length} thresholds hold. <span class="soft">${escaped(view.finishedAt)}</span></p>
<h2>Answers to purchases</h2>
<div class="scroll">${outcomesPicture(view.outcomes)}</div>
<h2>Latency</h2>
<div class="scroll">${latencyPicture(view.latencies)}</div>
${latencyTable(view)}
<h2>After the run</h2>
${pairs(view.after)}
<h2>Thresholds</h2>
${thresholdTable(view.thresholds)}
<h2>Run</h2>
${pairs(view.run)}
<p class="soft">loadtest/README.md explains the names. Compare figures within one run only: the load generator and the
servers may have shared a machine.</p>
</body></html>
`;
}

function escaped(text) {
  return String(text)
    .replace(/&/g, '&amp;')
    .replace(/</g, '&lt;')
    .replace(/>/g, '&gt;')
    .replace(/"/g, '&quot;')
    .replace(/'/g, '&#39;');
}

function picture(label, height, parts) {
  return `<svg viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escaped(label)}">\n${parts.join('\n')}\n</svg>`;
}

// A bar for each outcome that occurred.
function outcomesPicture(outcomes) {
  const seen = outcomes.filter(([, count]) => count > 0);
  if (seen.length === 0) {
    return '<p>No purchase was answered.</p>';
  }
  const sum = seen.reduce((total, [, count]) => total + count, 0);
  const most = Math.max(...seen.map(([, count]) => count));
  const bars = seen.map(([label, count], index) => {
    const top = index * ROW_HEIGHT;
    const width = Math.max(1, (count / most) * PLOT_WIDTH).toFixed(1);
    const share = ((count / sum) * 100).toFixed(1);
    return (
      `<text x="0" y="${top + 20}">${escaped(label)}</text>` +
      `<rect class="bar" x="${LABEL_WIDTH}" y="${top + 5}" width="${width}" height="20"/>` +
      `<text x="${LABEL_WIDTH + Number(width) + 8}" y="${top + 20}">${count} (${share} %)</text>`
    );
  });
  return picture('Answers to purchases by outcome', seen.length * ROW_HEIGHT, bars);
}

// A line from p50 to p99.9 for each latency, on a logarithmic scale.
function latencyPicture(latencies) {
  if (latencies.length === 0) {
    return '<p>Nothing was timed.</p>';
  }
  const slowest = Math.max(SHORTEST_MS * 10, ...latencies.map(([, times]) => times['p(99.9)']));
  const steps = Math.ceil(Math.log10(slowest / SHORTEST_MS));
  const at = (ms) =>
    (LABEL_WIDTH + (Math.log10(Math.max(ms, SHORTEST_MS) / SHORTEST_MS) / steps) * PLOT_WIDTH).toFixed(1);
  const bottom = latencies.length * ROW_HEIGHT;
  const parts = [];
  for (let step = 0; step <= steps; step += 1) {
    const ms = SHORTEST_MS * 10 ** step;
    const name = ms < 1 ? ms.toFixed(1) : String(Math.round(ms));
    parts.push(
      `<line class="grid" x1="${at(ms)}" x2="${at(ms)}" y1="0" y2="${bottom}"/>` +
        `<text class="soft" x="${at(ms)}" y="${bottom + 18}" text-anchor="middle">${name} ms</text>`,
    );
  }
  latencies.forEach(([label, times], index) => {
    const middle = index * ROW_HEIGHT + 15;
    const marks = [
      ['p(50)', 'bar', 7],
      ['p(95)', 'bar', 5],
      ['p(99)', 'tail', 5],
      ['p(99.9)', 'tail', 3.5],
    ];
    parts.push(
      `<text x="0" y="${middle + 5}">${escaped(label)}</text>` +
        `<line class="span" x1="${at(times['p(50)'])}" x2="${at(times['p(99.9)'])}" y1="${middle}" y2="${middle}"/>` +
        marks
          .map(
            ([name, kind, radius]) =>
              `<circle class="${kind}" cx="${at(times[name])}" cy="${middle}" r="${radius}">` +
              `<title>${escaped(`${label}, ${name}: ${times[name].toFixed(2)} ms`)}</title></circle>`,
          )
          .join(''),
    );
  });
  parts.push(
    `<text class="soft" x="${LABEL_WIDTH}" y="${bottom + 40}">from the left: p50 (large), p95, p99 and p99.9 (small)</text>`,
  );
  return picture('Latency percentiles', bottom + 50, parts);
}

function latencyTable({ percentiles, latencies }) {
  const head = percentiles.map((name) => `<th class="number">${escaped(name)}</th>`).join('');
  const rows = latencies.map(([label, times]) => {
    const cells = percentiles.map((name) => `<td class="number">${times[name].toFixed(2)}</td>`).join('');
    return `<tr><td>${escaped(label)}</td>${cells}</tr>`;
  });
  return table(`<tr><th>ms</th>${head}</tr>`, rows);
}

// Failed thresholds come first.
function thresholdTable(thresholds) {
  const sorted = [...thresholds].sort((a, b) => Number(a.ok) - Number(b.ok));
  const rows = sorted.map(
    ({ metric, rule, ok, found }) =>
      `<tr><td class="${ok ? 'good' : 'bad'}">${ok ? 'holds' : 'fails'}</td><td>${escaped(metric)}</td>` +
      `<td>${escaped(rule)}</td><td class="number">${escaped(found)}</td></tr>`,
  );
  return table('<tr><th></th><th>metric</th><th>rule</th><th class="number">found</th></tr>', rows);
}

function pairs(list) {
  const rows = list.map(([label, text]) => `<tr><td>${escaped(label)}</td><td class="number">${escaped(text)}</td></tr>`);
  return table('', rows);
}

function table(head, rows) {
  return `<div class="scroll"><table>${head}${rows.join('\n')}</table></div>`;
}
