// As many servers as WORKERS says, on one port.
const cluster = require('node:cluster');

if (cluster.isPrimary) {
    for (let number = 0; number < Number(process.env.WORKERS); number++) cluster.fork();
} else {
    const { bootstrap } = require('@vendure/core');
    bootstrap(require('./config').config).catch(error => {
        console.error(error);
        process.exit(1);
    });
}
