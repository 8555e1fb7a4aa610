// What a run says at its end: a page for people on standard output, the same as JSON in loadtest/results.

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
  ['stock', 'units_total'],
  ['available', 'units_available'],
  ['held', 'units_held'],
  ['sold', 'units_sold'],
  ['orders found', 'orders_found'],
  ['seconds until drained', 'drain_seconds'],
];

// The handleSummary of a scenario; `settings` is what the run was made with, nothing secret.
export function summaryOf(scenario, settings) {
  return (data) => {
    const report = reportOf(scenario, settings, data);
    return {
      stdout: pageOf(report, data.metrics),
      [`${__ENV.RESULTS_DIR || RESULTS}/${scenario}.json`]: `${JSON.stringify(report, null, 2)}\n`,
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
    sale: data.setup_data === undefined ? null : data.setup_data,
    settings,
    thresholds,
    metrics,
  };
}

function pageOf(report, metrics) {
  const failed = Object.keys(report.thresholds).filter((rule) => !report.thresholds[rule]);
  const value = (name, field) => (metrics[name] === undefined ? undefined : metrics[name].values[field]);
  const lines = ['', `${report.scenario}: ${report.passed ? 'PASSED' : 'FAILED'}`];
  for (const rule of failed) {
    const name = rule.slice(0, rule.lastIndexOf(' '));
    lines.push(`  failed  ${rule}  (${JSON.stringify(metrics[name].values)})`);
  }
  lines.push('', 'Run');
  lines.push(row('sale', report.sale === null ? 'none' : report.sale.id));
  for (const [name, setting] of Object.entries(report.settings)) {
    lines.push(row(name, setting));
  }
  lines.push(row('seconds, check included', report.seconds.toFixed(1)));
  lines.push(row('iterations', value('iterations', 'count') || 0));
  lines.push(row('iterations dropped', value('dropped_iterations', 'count') || 0));
  lines.push('', 'Answers');
  for (const [label, name] of OUTCOMES) {
    lines.push(row(label, value(name, 'count') || 0));
  }
  lines.push('', `${'Latency in ms'.padEnd(26)}${PERCENTILES.map((name) => name.padStart(11)).join('')}`);
  for (const [label, name] of LATENCIES) {
    if (value(name, 'count') > 0) {
      lines.push(row(label, PERCENTILES.map((field) => value(name, field).toFixed(2).padStart(11)).join('')));
    }
  }
  lines.push('', 'After the run');
  for (const [label, name] of UNITS) {
    const counted = value(name, 'value');
    lines.push(row(label, counted === undefined ? 'not counted' : counted));
  }
  const rules = Object.keys(report.thresholds).length;
  lines.push('', `${rules - failed.length} of ${rules} thresholds hold`, '');
  return lines.join('\n');
}

function row(label, text) {
  return `  ${label.padEnd(24)}${text}`;
}
