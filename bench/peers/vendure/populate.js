// Makes the tables and a shop with one variant for each STOCK argument. Prints the variants' ids as JSON.
const {
    bootstrapWorker,
    Populator,
    ProductService,
    ProductVariantService,
    RequestContextService,
} = require('@vendure/core');
const { config } = require('./config');

async function populate() {
    const { app } = await bootstrapWorker(config);
    await app.get(Populator).populateInitialData({
        defaultLanguage: 'en',
        defaultZone: 'Europe',
        countries: [{ code: 'DE', name: 'Germany', zone: 'Europe' }],
        taxRates: [{ name: 'Standard', percentage: 19 }],
        shippingMethods: [{ name: 'Standard', price: 500 }],
        paymentMethods: [
            {
                name: 'Dummy',
                handler: { code: 'dummy-payment-handler', arguments: [{ name: 'automaticSettle', value: 'true' }] },
            },
        ],
        collections: [],
    });
    const context = await app.get(RequestContextService).create({ apiType: 'admin' });
    const ids = [];
    for (const [number, stock] of process.argv.slice(2).entries()) {
        const name = `Phone ${number}`;
        const product = await app.get(ProductService).create(context, {
            enabled: true,
            translations: [{ languageCode: 'en', name, slug: `phone-${number}`, description: '' }],
        });
        const [variant] = await app.get(ProductVariantService).create(context, [
            {
                productId: product.id,
                sku: `phone-${number}`,
                price: 1000,
                stockOnHand: Number(stock),
                trackInventory: 'TRUE',
                translations: [{ languageCode: 'en', name }],
            },
        ]);
        ids.push(variant.id);
    }
    console.log(`\nvariants=${JSON.stringify(ids)}`);
    await app.close();
    process.exit(0);
}

populate().catch(error => {
    console.error(error);
    process.exit(1);
});
