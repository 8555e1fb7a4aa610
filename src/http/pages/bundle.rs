//! Bundles: a script and the modules that it imports, as one file.
//!
//! Each module becomes a function that is called once and returns what the module exports. This takes the modules as they
//! are written here: named imports from `./`, exports of functions and constants, no circles, no text over several lines.
//! Lines of comments are left out, and the space before each line.

use std::collections::BTreeMap;

/// The bundle of a script, of these modules by name.
pub fn bundle(entry: &str, modules: &BTreeMap<&str, &str>) -> String {
    let mut bundled = Bundle {
        modules,
        names: Vec::new(),
        text: String::new(),
    };
    bundled.add(entry);
    bundled.text
}

struct Bundle<'a> {
    modules: &'a BTreeMap<&'a str, &'a str>,
    /// The modules that it has, and those that are being added.
    names: Vec<&'a str>,
    text: String,
}

impl<'a> Bundle<'a> {
    /// Adds a module behind those that it imports.
    fn add(&mut self, name: &str) {
        let Some((name, text)) = self.modules.get_key_value(name) else {
            return;
        };
        if self.names.contains(name) {
            return;
        }
        self.names.push(*name);
        let module = Module::of(text);
        for import in &module.imports {
            self.add(import);
        }
        let (constant, exports) = (constant_of(name), module.exports.join(", "));
        self.text += &format!(
            "const {constant} = (() => {{\n{}return {{ {exports} }};\n}})();\n",
            module.body
        );
    }
}

/// What a module imports and exports, and its text without imports, the word `export` and comments.
#[derive(Default)]
struct Module<'a> {
    imports: Vec<&'a str>,
    exports: Vec<&'a str>,
    body: String,
}

impl<'a> Module<'a> {
    fn of(mut text: &'a str) -> Self {
        let mut module = Self::default();
        while !text.is_empty() {
            let line = text.split_inclusive('\n').next().unwrap_or(text);
            let trimmed = line.trim_start();
            let end = if line.starts_with("import {") {
                end_of(text, ";\n")
            } else if trimmed.starts_with("/*") {
                end_of(text, "*/")
            } else {
                line.len()
            };
            let (taken, rest) = text.split_at(end);
            text = rest;
            if line.starts_with("import {") {
                module.import(taken);
            } else if let Some(exported) = line.strip_prefix("export ") {
                let words = exported.split(|it: char| !it.is_alphanumeric() && it != '_');
                module
                    .exports
                    .extend(words.into_iter().find(|it| !KEYWORDS.contains(it)));
                module.body += exported;
            } else if !trimmed.starts_with("//") && !trimmed.starts_with("/*") && !trimmed.is_empty() {
                module.body += trimmed;
            }
        }
        module
    }

    /// `import { A, B } from './NAME';` becomes `const { A, B } = …;`.
    fn import(&mut self, statement: &'a str) {
        let parts = statement.split_once(" from './").and_then(|(names, from)| {
            let from = from.split('\'').next()?;
            Some((names.strip_prefix("import ")?, from))
        });
        if let Some((names, from)) = parts {
            self.imports.push(from);
            self.body += &format!("const {names} = {};\n", constant_of(from));
        }
    }
}

/// Words before the name of what a module exports.
const KEYWORDS: [&str; 4] = ["async", "const", "function", "class"];

/// The end of the first such mark, or of the text.
fn end_of(text: &str, mark: &str) -> usize {
    text.find(mark).map_or(text.len(), |at| at + mark.len())
}

/// The constant with the exports of a module.
fn constant_of(name: &str) -> String {
    format!("${}", name.trim_end_matches(".js").replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::bundle;
    use std::collections::BTreeMap;

    #[test]
    fn modules_stand_once_behind_those_that_they_import() {
        let modules = BTreeMap::from([
            (
                "page.js",
                "// The page.\nimport {\n    a,\n    b,\n} from './a-b.js';\nimport { c } from './c.js';\n\na(b, c);\n",
            ),
            (
                "a-b.js",
                "import { c } from './c.js';\n/** @type {() => void} */\nexport function a() {}\nexport const b = c; // c\n",
            ),
            (
                "c.js",
                "/* All\n   of it. */\nlet own = 1;\nexport const c = /** @type {any} */ (own);\n",
            ),
            ("other.js", "export const nothing = 0;\n"),
        ]);
        assert_eq!(
            bundle("page.js", &modules),
            "const $c = (() => {\nlet own = 1;\nconst c = /** @type {any} */ (own);\nreturn { c };\n})();\n\
             const $a_b = (() => {\nconst { c } = $c;\nfunction a() {}\nconst b = c; // c\nreturn { a, b };\n})();\n\
             const $page = (() => {\nconst {\n    a,\n    b,\n} = $a_b;\nconst { c } = $c;\na(b, c);\nreturn {  };\n})();\n"
        );
    }

    #[test]
    fn code_after_a_comment_stays() {
        let modules = BTreeMap::from([("page.js", "    /** @type {any} */ (place)?.focus();\n")]);
        let bundled = bundle("page.js", &modules);
        assert!(bundled.contains("\n(place)?.focus();\n"), "{bundled}");
    }
}
