// The lints of all JavaScript. `./dev javascript` runs ESLint at the top of the repository.

import js from '@eslint/js';
import globals from 'globals';

export default [
    { linterOptions: { reportUnusedDisableDirectives: 'error' } },
    js.configs.recommended,
    {
        rules: {
            eqeqeq: 'error',
            'no-unused-vars': ['error', { argsIgnorePattern: '^_', caughtErrorsIgnorePattern: '^_' }],
            'no-use-before-define': ['error', { functions: false, variables: false }],
            'no-var': 'error',
            'object-shorthand': 'error',
            'prefer-const': 'error',
        },
    },
    { files: ['web/**'], languageOptions: { globals: globals.browser } },
    {
        // A classic script, not a module.
        files: ['web/shop/proof-worker.js'],
        languageOptions: { sourceType: 'script', globals: globals.worker },
    },
    { files: ['loadtest/**'], languageOptions: { globals: { __ENV: 'readonly', console: 'readonly' } } },
    {
        // It runs in Node and in browsers.
        files: ['docs/clients/**'],
        languageOptions: { globals: { ...globals['shared-node-browser'], process: 'readonly' } },
    },
    { files: ['tests/javascript/**'], languageOptions: { globals: globals.node } },
];
