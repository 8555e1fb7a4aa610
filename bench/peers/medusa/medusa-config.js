// Production settings: Redis for cache, events, workflows and locks.
const { defineConfig } = require('@medusajs/framework/utils');

const redisUrl = process.env.REDIS_URL;

module.exports = defineConfig({
    admin: { disable: true },
    projectConfig: {
        databaseUrl: process.env.DATABASE_URL,
        databaseDriverOptions: { ssl: false, connection: { ssl: false }, pool: { min: 2, max: 20 } },
        redisUrl,
        http: {
            storeCors: 'http://127.0.0.1',
            adminCors: 'http://127.0.0.1',
            authCors: 'http://127.0.0.1',
            jwtSecret: process.env.SECRET,
            cookieSecret: process.env.SECRET,
        },
    },
    modules: [
        {
            resolve: '@medusajs/medusa/caching',
            options: {
                providers: [{ resolve: '@medusajs/caching-redis', id: 'caching-redis', is_default: true, options: { redisUrl } }],
            },
        },
        { resolve: '@medusajs/medusa/event-bus-redis', options: { redisUrl } },
        { resolve: '@medusajs/medusa/workflow-engine-redis', options: { redis: { redisUrl } } },
        {
            resolve: '@medusajs/medusa/locking',
            options: {
                providers: [
                    { resolve: '@medusajs/medusa/locking-redis', id: 'locking-redis', is_default: true, options: { redisUrl } },
                ],
            },
        },
    ],
});
