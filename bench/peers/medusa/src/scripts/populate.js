// Makes a shop with one variant for each stock of the variable STOCKS. Prints key, region and variants as JSON.
const {
    createApiKeysWorkflow,
    createInventoryLevelsWorkflow,
    createProductsWorkflow,
    createRegionsWorkflow,
    createSalesChannelsWorkflow,
    createStockLocationsWorkflow,
    linkSalesChannelsToApiKeyWorkflow,
    linkSalesChannelsToStockLocationWorkflow,
    updateInventoryItemsWorkflow,
} = require('@medusajs/medusa/core-flows');

exports.default = async function populate({ container }) {
    const run = async (workflow, input) => (await workflow(container).run({ input })).result;
    const query = container.resolve('query');
    const [channel] = await run(createSalesChannelsWorkflow, { salesChannelsData: [{ name: 'Web' }] });
    const [key] = await run(createApiKeysWorkflow, {
        api_keys: [{ title: 'Web', type: 'publishable', created_by: '' }],
    });
    await run(linkSalesChannelsToApiKeyWorkflow, { id: key.id, add: [channel.id] });
    const [place] = await run(createStockLocationsWorkflow, { locations: [{ name: 'Warehouse' }] });
    await run(linkSalesChannelsToStockLocationWorkflow, { id: place.id, add: [channel.id] });
    const [region] = await run(createRegionsWorkflow, {
        regions: [{ name: 'Europe', currency_code: 'eur', countries: ['de'], payment_providers: ['pp_system_default'] }],
    });
    const variants = [];
    for (const [number, stock] of process.env.STOCKS.split(',').entries()) {
        const sku = `phone-${number}`;
        const [product] = await run(createProductsWorkflow, {
            products: [
                {
                    title: sku,
                    status: 'published',
                    options: [{ title: 'Colour', values: ['Black'] }],
                    sales_channels: [{ id: channel.id }],
                    variants: [
                        {
                            title: sku,
                            sku,
                            manage_inventory: true,
                            options: { Colour: 'Black' },
                            prices: [{ amount: 10, currency_code: 'eur' }],
                        },
                    ],
                },
            ],
        });
        const { data } = await query.graph({ entity: 'inventory_item', fields: ['id'], filters: { sku } });
        await run(updateInventoryItemsWorkflow, { updates: [{ id: data[0].id, requires_shipping: false }] });
        await run(createInventoryLevelsWorkflow, {
            inventory_levels: [
                { inventory_item_id: data[0].id, location_id: place.id, stocked_quantity: Number(stock) },
            ],
        });
        variants.push(product.variants[0].id);
    }
    console.log(`\nshop=${JSON.stringify({ key: key.token, region: region.id, variants })}`);
};
