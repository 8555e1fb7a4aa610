const { bootstrapWorker } = require('@vendure/core');

bootstrapWorker(require('./config').config)
    .then(worker => worker.startJobQueue())
    .catch(error => {
        console.error(error);
        process.exit(1);
    });
