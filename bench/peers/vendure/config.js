// Production settings: tables are synchronized by populate.js alone, debug and playgrounds are off.
const { DefaultJobQueuePlugin, DefaultSearchPlugin, dummyPaymentHandler } = require('@vendure/core');

exports.config = {
    apiOptions: {
        hostname: '127.0.0.1',
        port: Number(process.env.PORT),
        adminApiPath: 'admin-api',
        shopApiPath: 'shop-api',
    },
    authOptions: {
        tokenMethod: ['bearer'],
        superadminCredentials: { identifier: 'superadmin', password: process.env.SECRET },
    },
    dbConnectionOptions: {
        type: 'postgres',
        url: process.env.DATABASE_URL,
        synchronize: process.env.SYNCHRONIZE === '1',
        logging: false,
        poolSize: 20,
    },
    paymentOptions: { paymentMethodHandlers: [dummyPaymentHandler] },
    plugins: [DefaultJobQueuePlugin.init({ useDatabaseForBuffer: true }), DefaultSearchPlugin.init({ bufferUpdates: true })],
};
