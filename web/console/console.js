// The operator's console: opens the view that the address names.

import { resync } from './clock.js';
import { accountsView } from './console-accounts.js';
import { isSignedIn, onSession } from './console-api.js';
import { attentionView } from './console-attention.js';
import { readBadges, startBadges } from './console-badges.js';
import { formView } from './console-form.js';
import { limitsView } from './console-limits.js';
import { moneyView } from './console-money.js';
import { ordersView } from './console-orders.js';
import { reportView } from './console-report.js';
import { saleView } from './console-sale.js';
import { salesView } from './console-sales.js';
import { shadowView } from './console-shadow.js';
import { showSignIn, startSignIn, wantSignIn } from './console-sign-in.js';
import { auditLogView } from './console-audit-log.js';
import { CONSOLE_WORDS } from './console-words.js';
import { byId, setTitle } from './dom.js';
import { learn, say, startLanguage } from './language.js';

const TICK_MS = 500;

learn(CONSOLE_WORDS);

const [, part = 'sales', id = '', how = ''] = location.pathname.split('/').filter(Boolean);
/** @type {View | null} */
let shown = null;
let wasSignedIn = false;

// The views without an id in their address, by name.
const LISTS = {
    accounts: accountsView,
    orders: ordersView,
    limits: limitsView,
    shadow: shadowView,
    money: moneyView,
    'audit-log': auditLogView,
    sales: salesView,
};
// The further views of a sale.
const VIEWS_OF_SALE = { attention: attentionView, report: reportView };
const isList = id === '' || part !== 'sales';

/** @type {(view: HTMLElement) => View} */
function open(view) {
    if (isList) {
        return (LISTS[part] ?? salesView)(view);
    }
    if (id === 'new' || how === 'edit') {
        return formView(view, id === 'new' ? null : id);
    }
    return (VIEWS_OF_SALE[how] ?? saleView)(view, id);
}

onSession(() => {
    showSignIn();
    if (isSignedIn()) {
        readBadges();
        // Keeps the existing view: it may hold typed text.
        if (shown) {
            shown.read();
        } else {
            shown = open(byId('view'));
        }
    } else if (wasSignedIn) {
        wantSignIn();
    }
    wasSignedIn = isSignedIn();
});

for (const link of byId('nav').querySelectorAll('a')) {
    const [, own = 'sales'] = new URL(link.href).pathname.split('/').filter(Boolean);
    if (own === part) {
        link.setAttribute('aria-current', id === '' ? 'page' : 'true');
    }
}
function nameOfView() {
    if (isList) {
        return part;
    }
    if (id === 'new') {
        return 'newSale';
    }
    return { edit: 'editSale', report: 'report' }[how] ?? 'sale';
}
// The view of a sale adds the sale's name once it is loaded.
const title = () => setTitle(`${say(nameOfView())} · ${say('console')}`);
title();
startLanguage(() => {
    title();
    shown?.again();
});
startSignIn();
document.addEventListener('visibilitychange', resync);
setInterval(() => shown?.tick?.(), TICK_MS);
startBadges();
