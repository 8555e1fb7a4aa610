// The languages of the pages by code, with the texts of the shop's pages: the server fills in the files of web/languages/.

/** @type {Record<string, Language>} */
export const WORDS = {};
