// The texts of the console beyond words.js, by language: the server fills in the files of web/languages/.

export const CONSOLE_WORDS = {};
