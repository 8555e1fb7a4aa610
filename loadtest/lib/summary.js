// The report at the end of a run: text on standard output, HTML with pictures in loadtest/results, and JSON beside it.

import { summaryPage } from './summary_page.js';

const RESULTS = `${decodeURIComponent(import.meta.resolve('../results').replace(/^file:\/\//, ''))}`;

const LATENCIES = [
  ['purchases accepted', 'buy_reserved_duration'],
  ['purchases sold out', 'buy_sold_out_duration'],
  ['every purchase', 'http_req_duration{name:buy}'],
  ['reading an order', 'http_req_duration{name:read_order}'],
];
const PERCENTILES = ['p(50)', 'p(95)', 'p(99)', 'p(99.9)', 'max'];

const OUTCOMES = [
  ['reserved (201)', 'orders_reserved'],
  ['replayed (200)', 'orders_replayed'],
  ['sold out (409)', 'refused_sold_out'],
  ['purchase limit (409)', 'refused_purchase_limit'],
  ['rate limited (429)', 'refused_rate_limited'],
  ['shed (503)', 'refused_503'],
  ['refused otherwise', 'refused_otherwise'],
  ['no answer', 'unanswered'],
];

const UNITS = [
  ['stock', 'units_total', 'value'],
  ['available', 'units_available', 'value'],
  ['held', 'units_held', 'value'],
  ['sold', 'units_sold', 'value'],
  ['orders found', 'orders_found', 'value'],
  ['orders counted by the API', 'orders_counted', 'value'],
  ['seconds until drained', 'drain_seconds', 'value'],
];

// The handleSummary of a scenario. `settings` are the settings of the run, without secrets.
//
// latencies  further latencies, [label, metric] each
// figures    the scenario's own figures, [label, metric, value] each
/** @type {(scenario: string, settings: object, lines?: SummaryLines) => (data: any) => Record<string, string>} */
export function summaryOf(scenario, settings, { latencies = [], figures = [] } = {}) {
  return (data) => {
    const report = reportOf(scenario, settings, data);
    const view = viewOf(report, data.metrics, [...LATENCIES, ...latencies], figures);
    const file = `${__ENV.RESULTS_DIR || RESULTS}/${scenario}`;
    return {
      stdout: pageOf(view, `${file}.html`),
      [`${file}.html`]: summaryPage(view),
      [`${file}.json`]: `${JSON.stringify(report, null, 2)}\n`,
    };
  };
}

function reportOf(scenario, settings, data) {
  const thresholds = {};
  for (const [name, metric] of Object.entries(data.metrics)) {
    for (const [rule, { ok }] of Object.entries(metric.thresholds || {})) {
      thresholds[`${name} ${rule}`] = ok;
    }
  }
  const metrics = {};
  for (const [name, metric] of Object.entries(data.metrics)) {
    metrics[name] = metric.values;
  }
  return {
    scenario,
    passed: Object.values(thresholds).every((ok) => ok),
    finished_at: new Date().toISOString(),
    seconds: data.state.testRunDurationMs / 1000,
    sale: saleOf(data.setup_data),
    settings,
    thresholds,
    metrics,
  };
}

// The sale of the run. Other data of `setup` is no result.
function saleOf(setup) {
  if (setup === undefined || setup === null) {
    return null;
  }
  const { id, run, scenario, items, shards, durability } = setup;
  return { id, run, scenario, items, shards, durability };
}

// The contents of the text and of the HTML page:
//
// outcomes    [label, count]
// latencies   [label, {percentile: milliseconds}]
// run, after  [label, text], before and after the shoppers
// thresholds  {metric, rule, ok, found}
function viewOf(report, metrics, latencies, figures) {
  const value = (name, field) => (metrics[name] === undefined ? undefined : metrics[name].values[field]);
  const thresholds = [];
  for (const [metric, { thresholds: rules, values }] of Object.entries(metrics)) {
    for (const [rule, { ok }] of Object.entries(rules || {})) {
      thresholds.push({ metric, rule, ok, found: foundOf(rule, values) });
    }
  }
  return {
    scenario: report.scenario,
    passed: report.passed,
    finishedAt: report.finished_at,
    thresholds,
    run: [
      ['sale', report.sale === null ? 'none' : report.sale.id],
      ...Object.entries(report.settings).map(([name, setting]) => [name, String(setting)]),
      ['seconds, check included', report.seconds.toFixed(1)],
      ['iterations', number(value('iterations', 'count') || 0)],
      ['iterations dropped', number(value('dropped_iterations', 'count') || 0)],
    ],
    outcomes: OUTCOMES.map(([label, name]) => [label, value(name, 'count') || 0]),
    percentiles: PERCENTILES,
    latencies: latencies
      .filter(([, name]) => value(name, 'count') > 0)
      .map(([label, name]) => [label, Object.fromEntries(PERCENTILES.map((field) => [field, value(name, field)]))]),
    after: [...UNITS, ...figures].map(([label, name, field]) => [label, number(value(name, field))]),
  };
}

// The metric's value that a rule judges.
function foundOf(rule, values) {
  const field = /^\s*([a-z]+(?:\([\d.]+\))?)/.exec(rule);
  const found = field === null ? undefined : values[field[1]];
  return found === undefined ? JSON.stringify(values) : number(found);
}

function number(value) {
  if (value === undefined) {
    return 'not counted';
  }
  return Number.isInteger(value) ? String(value) : value.toFixed(Math.abs(value) < 10 ? 3 : 1);
}

function pageOf(view, picture) {
  const failed = view.thresholds.filter(({ ok }) => !ok);
  const lines = ['', `${view.scenario}: ${view.passed ? 'PASSED' : 'FAILED'}`];
  for (const { metric, rule, found } of failed) {
    lines.push(`  failed  ${metric} ${rule}  (${found})`);
  }
  lines.push('', 'Run', ...view.run.map(row));
  lines.push('', 'Answers', ...view.outcomes.map(row));
  lines.push('', `${'Latency in ms'.padEnd(32)}${view.percentiles.map((name) => name.padStart(11)).join('')}`);
  for (const [label, times] of view.latencies) {
    lines.push(row([label, view.percentiles.map((field) => times[field].toFixed(2).padStart(11)).join('')]));
  }
  lines.push('', 'After the run', ...view.after.map(row));
  const rules = view.thresholds.length;
  lines.push('', `${rules - failed.length} of ${rules} thresholds hold`, `the same with pictures: ${picture}`, '');
  return lines.join('\n');
}

function row([label, text]) {
  return `  ${label.padEnd(30)}${text}`;
}
