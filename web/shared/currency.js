// How many digits a price has behind the point, as ISO 4217 says. Browsers leave out digits of some currencies.
// `src/domain/shop/currency.rs` has the same table, and a test there compares them.

/** @type {[number, string][]} */
const DIGITS = [
    [0, 'BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF'],
    [3, 'BHD IQD JOD KWD LYD OMR TND'],
    [4, 'CLF UYW'],
];

/** @type {(currency: string) => number} */
export function digitsOf(currency) {
    const row = DIGITS.find(([, codes]) => codes.split(' ').includes(currency));
    return row ? row[0] : 2;
}
