// Checks the types of all JavaScript with tsc.
// Only under `noImplicitAny` does tsc check the members of object literals. It then also asks for a type of each parameter
// and index (TS70xx). Those types would fill the files with comments, so this check drops these errors.

import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const PROJECTS = ['web', 'loadtest', 'clients'];
const DROPPED = /error TS70\d\d:/;

const folder = fileURLToPath(new URL('.', import.meta.url));

function errorsOf(project) {
    const command = ['node_modules/typescript/bin/tsc', '--project', `${project}.json`, '--pretty', 'false'];
    const { status, stdout, stderr } = spawnSync(process.execPath, command, { cwd: folder, encoding: 'utf8' });
    // Indented lines belong to the message before them.
    const messages = stdout.split(/\n(?! )/).filter((message) => message !== '');
    if (status !== 0 && !messages.some((message) => message.includes('error TS'))) {
        return [`tsc failed for ${project}.json: ${stdout}${stderr}`];
    }
    return messages.filter((message) => !DROPPED.test(message)).map((message) => message.replace(/^(\.\.\/)+/, ''));
}

const errors = PROJECTS.flatMap(errorsOf);
errors.forEach((error) => console.error(error));
process.exitCode = errors.length > 0 ? 1 : 0;
